// FP32 division, a quotient bit a step: round to nearest even, subnormal operands and results are zeros of their sign, every
// NaN is 7fc00000. Two of LATENCY registers stand before and behind the rounding; the others are spread over 26 cuts, one
// before each step. With 15 registers or more, at most two steps stand between two of them.
module fp32_divide #(
    parameter LATENCY = 16
) (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  localparam STEPS = 26, SPREAD = LATENCY > 2 ? LATENCY - 2 : 0;
  wire a_zero = ~|a[30:23], b_zero = ~|b[30:23], a_top = &a[30:23], b_top = &b[30:23];
  wire a_nan = a_top & |a[22:0], b_nan = b_top & |b[22:0];
  wire is_nan = a_nan | b_nan | a_zero & b_zero | a_top & b_top;
  wire [9:0] exponent = {2'b0, a[30:23]} - {2'b0, b[30:23]} + 10'd127;
  wire [3:0] flags = {a[31] ^ b[31], a_zero | b_top, a_top | b_zero, is_nan};  // sign, zero, infinite, NaN
  // Of a step: what is left of the dividend (below twice the divisor), the divisor, quotient so far.
  wire [24:0] rest[0:STEPS];
  wire [23:0] divisor[0:STEPS];
  wire [STEPS-1:0] quotient[0:STEPS];
  wire [13:0] head[0:STEPS];  // exponent, flags
  assign rest[0] = {2'b01, a[22:0]};
  assign divisor[0] = {1'b1, b[22:0]};
  assign quotient[0] = {STEPS{1'b0}};
  assign head[0] = {exponent, flags};
  genvar s;
  generate
    for (s = 0; s < STEPS; s = s + 1) begin : step
      wire [24:0] left;
      wire [23:0] by;
      wire [STEPS-2:0] bits;
      delay #(.WIDTH(62 + STEPS), .CYCLES(((s + 1) * SPREAD + STEPS - 1) / STEPS - (s * SPREAD + STEPS - 1) / STEPS)) cut (
          .clock(clock), .in({rest[s], divisor[s], quotient[s][STEPS-2:0], head[s]}), .out({left, by, bits, head[s+1]})
      );
      wire fits = left >= {1'b0, by};
      wire [23:0] reduced = fits ? left[23:0] - by : left[23:0];
      assign rest[s+1] = {reduced, 1'b0};
      assign divisor[s+1] = by;
      assign quotient[s+1] = {bits, fits};
    end
  endgenerate
  // The first bit is 0 where the dividend's significand is the smaller one.
  wire [STEPS-1:0] last;
  wire sticky;
  wire [13:0] ends;  // exponent, flags
  delay #(.WIDTH(15 + STEPS), .CYCLES(LATENCY > 1 ? 1 : 0)) cut_round (
      .clock(clock), .in({quotient[STEPS], |rest[STEPS], head[STEPS]}), .out({last, sticky, ends})
  );
  wire high = last[STEPS-1];
  wire [31:0] rounded;
  fp32_round round (
      .sign(ends[3]),
      .exponent(ends[13:4] - {9'b0, ~high}),
      .significand(high ? {last, sticky} : {last[STEPS-2:0], 1'b0, sticky}),
      .is_zero(ends[2]),
      .is_infinite(ends[1]),
      .is_nan(ends[0]),
      .result(rounded)
  );
  delay #(.WIDTH(32), .CYCLES(1)) cut_last (.clock(clock), .in(rounded), .out(result));
endmodule
