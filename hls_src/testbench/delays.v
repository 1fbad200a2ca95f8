// Delays as Vivado gets them (HARDWARE_DELAYS) beside shift registers, for 1000 cycles; prints the number of values that differ.
module delays;
  reg clock = 0;
  reg [39:0] in = 1;
  integer cycle = 0, faults = 0;
  wire [9:0] differs;
  check #(.WIDTH(32), .CYCLES(9)) c0 (.clock(clock), .in(in[31:0]), .cycle(cycle), .differs(differs[0]));
  check #(.WIDTH(32), .CYCLES(10)) c1 (.clock(clock), .in(in[31:0]), .cycle(cycle), .differs(differs[1]));
  check #(.WIDTH(40), .CYCLES(33)) c2 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[2]));
  check #(.WIDTH(40), .CYCLES(64)) c3 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[3]));
  check #(.WIDTH(40), .CYCLES(65)) c4 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[4]));
  check #(.WIDTH(40), .CYCLES(66)) c5 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[5]));
  check #(.WIDTH(40), .CYCLES(74)) c6 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[6]));
  check #(.WIDTH(40), .CYCLES(75)) c7 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[7]));
  check #(.WIDTH(40), .CYCLES(131)) c8 (.clock(clock), .in(in), .cycle(cycle), .differs(differs[8]));
  check #(.WIDTH(8), .CYCLES(131)) c9 (.clock(clock), .in(in[7:0]), .cycle(cycle), .differs(differs[9]));
  initial begin
    for (cycle = 0; cycle < 1000; cycle = cycle + 1) begin
      #1 clock = 1;
      #1 clock = 0;
      if (|differs) faults = faults + 1;
      in = {in[38:0], in[39] ^ in[37] ^ in[20] ^ in[18]};
    end
    $display("%0d faults", faults);
    $finish;
  end
endmodule

module check #(
    parameter WIDTH = 1,
    parameter CYCLES = 1
) (
    input wire clock,
    input wire [WIDTH-1:0] in,
    input integer cycle,
    output wire differs
);
  wire [WIDTH-1:0] out;
  reg [WIDTH*CYCLES-1:0] stages;
  delay #(.WIDTH(WIDTH), .CYCLES(CYCLES)) delayed (.clock(clock), .in(in), .out(out));
  always @(posedge clock) stages <= {stages[WIDTH*(CYCLES-1)-1:0], in};
  assign differs = cycle >= CYCLES && out != stages[WIDTH*(CYCLES-1)+:WIDTH];
endmodule
