// A value CYCLES later; 0 cycles are a wire. Vivado and Yosys make shift registers of long ones.
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
    end else begin : registers
      reg [WIDTH*CYCLES-1:0] stages;
      always @(posedge clock) stages <= {stages[WIDTH*(CYCLES-1)-1:0], in};
      assign out = stages[WIDTH*CYCLES-1:WIDTH*(CYCLES-1)];
    end
  endgenerate
endmodule
