// A value CYCLES later; 0 cycles are a wire. Vivado and Yosys make shift registers of long ones; for Verilator these are rings,
// of which a cycle writes one entry instead of moving all.
module delay #(
    parameter WIDTH = 1,
    parameter CYCLES = 1
) (
    input  wire             clock,
    input  wire [WIDTH-1:0] in,
    output wire [WIDTH-1:0] out
);
  generate
    if (CYCLES == 0) begin : wire_only
      wire unused = clock;
      assign out = in;
    end else if (CYCLES == 1) begin : register
      reg [WIDTH-1:0] stage;
      always @(posedge clock) stage <= in;
      assign out = stage;
`ifdef VERILATOR
    end else if (CYCLES > 2) begin : ring
      localparam LAST = CYCLES - 2;
      localparam BITS = $clog2(LAST + 1);
      reg [WIDTH-1:0] stages[0:LAST];
      reg [WIDTH-1:0] last;
      reg [BITS-1:0] place;
      always @(posedge clock) begin
        last <= stages[place];
        stages[place] <= in;
        place <= place == LAST[BITS-1:0] ? {BITS{1'b0}} : place + 1'b1;
      end
      assign out = last;
`endif
    end else begin : registers
      reg [WIDTH*CYCLES-1:0] stages;
      always @(posedge clock) stages <= {stages[WIDTH*(CYCLES-1)-1:0], in};
      assign out = stages[WIDTH*CYCLES-1:WIDTH*(CYCLES-1)];
    end
  endgenerate
endmodule
