// FP32 square root, a bit a step: round to nearest even, subnormal operands are zeros of their sign, every NaN is 7fc00000.
// LATENCY registers are spread over 27 cuts: one before each of 26 steps, one behind the rounding.
module fp32_square_root #(
    parameter LATENCY = 16
) (
    input  wire        clock,
    input  wire [31:0] a,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  localparam STEPS = 26, CUTS = STEPS + 1;
  wire a_zero = ~|a[30:23], a_top = &a[30:23];
  wire is_nan = a_top & |a[22:0] | a[31] & ~a_zero;
  // The exponent is halved; the significand is doubled where the exponent (biased by 127) is even.
  wire odd = a[23];
  wire [9:0] exponent = {2'b0, 1'b0, a[30:24]} + 10'd63 + {9'b0, odd};
  wire [3:0] flags = {a[31], a_zero, a_top, is_nan};  // sign, zero, infinite, NaN
  // Of a step: bits of the operand to come, two at a time; what is left of those that came; root so far.
  wire [51:0] operand[0:STEPS];
  wire [28:0] rest[0:STEPS];
  wire [STEPS-1:0] root[0:STEPS];
  wire [13:0] head[0:STEPS];  // exponent, flags
  assign operand[0] = odd ? {2'b01, a[22:0], 27'b0} : {1'b1, a[22:0], 28'b0};
  assign rest[0] = 29'b0;
  assign root[0] = {STEPS{1'b0}};
  assign head[0] = {exponent, flags};
  genvar s;
  generate
    for (s = 0; s < STEPS; s = s + 1) begin : step
      wire [51:0] bits;
      wire [26:0] left;
      wire [STEPS-1:0] so_far;
      delay #(.WIDTH(93 + STEPS), .CYCLES((s + 1) * LATENCY / CUTS - s * LATENCY / CUTS)) cut (
          .clock(clock), .in({operand[s], rest[s][26:0], root[s], head[s]}), .out({bits, left, so_far, head[s+1]})
      );
      wire [28:0] more = {left, bits[51:50]};
      wire [28:0] trial = {1'b0, so_far, 2'b01};
      wire fits = more >= trial;
      assign rest[s+1] = fits ? more - trial : more;
      assign operand[s+1] = {bits[49:0], 2'b0};
      assign root[s+1] = {so_far[STEPS-2:0], fits};
    end
  endgenerate
  wire [31:0] rounded;
  fp32_round round (
      .sign(head[STEPS][3]),
      .exponent(head[STEPS][13:4]),
      .significand({root[STEPS], |rest[STEPS]}),
      .is_zero(head[STEPS][2]),
      .is_infinite(head[STEPS][1]),
      .is_nan(head[STEPS][0]),
      .result(rounded)
  );
  delay #(.WIDTH(32), .CYCLES(LATENCY - STEPS * LATENCY / CUTS)) cut_last (.clock(clock), .in(rounded), .out(result));
endmodule
