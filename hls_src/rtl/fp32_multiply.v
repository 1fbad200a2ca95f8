// FP32 multiplication: round to nearest even, subnormal operands and results are zeros of their sign, every NaN is 7fc00000.
// LATENCY registers are spread over four cuts: operands | product | product again (which a tool may pack into the DSPs) | round.
module fp32_multiply #(
    parameter LATENCY = 4
) (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  localparam CUTS = 4;
  wire [31:0] a1, b1;
  delay #(.WIDTH(64), .CYCLES(LATENCY * 1 / CUTS)) cut_1 (.clock(clock), .in({a, b}), .out({a1, b1}));
  wire a_zero = ~|a1[30:23], b_zero = ~|b1[30:23];
  wire a_top = &a1[30:23], b_top = &b1[30:23];
  wire is_nan1 = a_top & |a1[22:0] | b_top & |b1[22:0] | a_top & b_zero | b_top & a_zero;
  wire [47:0] product1 = {24'b0, 1'b1, a1[22:0]} * {24'b0, 1'b1, b1[22:0]};
  wire [9:0] exponent1 = {2'b0, a1[30:23]} + {2'b0, b1[30:23]} - 10'd127;
  wire [47:0] product2, product3;
  wire [9:0] exponent2, exponent3;
  wire [3:0] flags2, flags3;  // sign, zero, infinite, NaN
  delay #(.WIDTH(62), .CYCLES(LATENCY * 2 / CUTS - LATENCY * 1 / CUTS)) cut_2 (
      .clock(clock),
      .in({product1, exponent1, a1[31] ^ b1[31], a_zero | b_zero, a_top | b_top, is_nan1}),
      .out({product2, exponent2, flags2})
  );
  delay #(.WIDTH(62), .CYCLES(LATENCY * 3 / CUTS - LATENCY * 2 / CUTS)) cut_3 (
      .clock(clock), .in({product2, exponent2, flags2}), .out({product3, exponent3, flags3})
  );
  wire high = product3[47];
  wire [26:0] significand = high ? {product3[47:22], |product3[21:0]} : {product3[46:21], |product3[20:0]};
  wire [31:0] rounded;
  fp32_round round (
      .sign(flags3[3]),
      .exponent(exponent3 + {9'b0, high}),
      .significand(significand),
      .is_zero(flags3[2]),
      .is_infinite(flags3[1]),
      .is_nan(flags3[0]),
      .result(rounded)
  );
  delay #(.WIDTH(32), .CYCLES(LATENCY - LATENCY * 3 / CUTS)) cut_4 (.clock(clock), .in(rounded), .out(result));
endmodule
