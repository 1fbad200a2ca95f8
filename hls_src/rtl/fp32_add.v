// FP32 addition: round to nearest even, subnormal operands and results are zeros of their sign, every NaN is 7fc00000.
// LATENCY registers are spread over five cuts: swap | align | add | count leading zeros | normalize and round.
module fp32_add #(
    parameter LATENCY = 5
) (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  localparam CUTS = 5;
  // Swap: the larger magnitude first.
  wire swap = a[30:0] < b[30:0];
  wire [31:0] large1, small1;
  delay #(.WIDTH(64), .CYCLES(LATENCY * 1 / CUTS)) cut_1 (
      .clock(clock), .in(swap ? {b, a} : {a, b}), .out({large1, small1})
  );
  // Align: guard, round and sticky bits below the smaller significand.
  wire [7:0] apart = large1[30:23] - small1[30:23];
  wire [26:0] whole_small = |small1[30:23] ? {1'b1, small1[22:0], 3'b0} : 27'b0;
  wire [26:0] whole_large = |large1[30:23] ? {1'b1, large1[22:0], 3'b0} : 27'b0;
  // Shifted by 16, 8, 4, 2 and 1, each time with the sticky bit of what falls off.
  wire far = |apart[7:5];
  wire [26:0] by_16 = apart[4] ? whole_small >> 16 : whole_small;
  wire [26:0] by_8 = apart[3] ? by_16 >> 8 : by_16;
  wire [26:0] by_4 = apart[2] ? by_8 >> 4 : by_8;
  wire [26:0] by_2 = apart[1] ? by_4 >> 2 : by_4;
  wire [26:0] by_1 = apart[0] ? by_2 >> 1 : by_2;
  wire [26:0] shifted = far ? 27'b0 : by_1;
  wire lost = far ? |whole_small : apart[4] & |whole_small[15:0] | apart[3] & |by_16[7:0] | apart[2] & |by_8[3:0]
      | apart[1] & |by_4[1:0] | apart[0] & by_2[0];
  wire large_nan = &large1[30:23] & |large1[22:0], small_nan = &small1[30:23] & |small1[22:0];
  wire opposite1 = large1[31] ^ small1[31];
  wire is_nan1 = large_nan | small_nan | (&large1[30:23] & &small1[30:23] & opposite1);
  wire [26:0] large2, small2;
  wire [7:0] exponent2;
  wire sign2, opposite2, negative_zero2, is_infinite2, is_nan2;
  delay #(.WIDTH(67), .CYCLES(LATENCY * 2 / CUTS - LATENCY * 1 / CUTS)) cut_2 (
      .clock(clock),
      .in({whole_large, shifted[26:1], shifted[0] | lost, large1[30:23], large1[31], opposite1,
           large1[31] & small1[31], &large1[30:23], is_nan1}),
      .out({large2, small2, exponent2, sign2, opposite2, negative_zero2, is_infinite2, is_nan2})
  );
  // Add or subtract.
  wire [27:0] sum2 = {1'b0, large2} + ({1'b0, small2} ^ {28{opposite2}}) + {27'b0, opposite2};
  wire [27:0] sum3;
  wire [7:0] exponent3;
  wire sign3, negative_zero3, is_infinite3, is_nan3;
  delay #(.WIDTH(40), .CYCLES(LATENCY * 3 / CUTS - LATENCY * 2 / CUTS)) cut_3 (
      .clock(clock),
      .in({sum2, exponent2, sign2, negative_zero2, is_infinite2, is_nan2}),
      .out({sum3, exponent3, sign3, negative_zero3, is_infinite3, is_nan3})
  );
  // Count leading zeros.
  integer i;
  reg [4:0] zeros3;
  always @* begin
    zeros3 = 5'd28;
    for (i = 0; i < 28; i = i + 1) if (sum3[i]) zeros3 = 5'd27 - i[4:0];
  end
  wire [27:0] sum4;
  wire [7:0] exponent4;
  wire [4:0] zeros4;
  wire sign4, negative_zero4, is_infinite4, is_nan4;
  delay #(.WIDTH(45), .CYCLES(LATENCY * 4 / CUTS - LATENCY * 3 / CUTS)) cut_4 (
      .clock(clock),
      .in({sum3, exponent3, zeros3, sign3, negative_zero3, is_infinite3, is_nan3}),
      .out({sum4, exponent4, zeros4, sign4, negative_zero4, is_infinite4, is_nan4})
  );
  // Normalize and round.
  wire [27:0] normal = sum4 << zeros4;
  wire is_zero4 = ~|sum4;
  wire [31:0] rounded;
  fp32_round round (
      .sign(is_zero4 & ~is_infinite4 ? negative_zero4 : sign4),
      .exponent({2'b0, exponent4} + 10'd1 - {5'b0, zeros4}),
      .significand({normal[27:2], |normal[1:0]}),
      .is_zero(is_zero4),
      .is_infinite(is_infinite4),
      .is_nan(is_nan4),
      .result(rounded)
  );
  delay #(.WIDTH(32), .CYCLES(LATENCY - LATENCY * 4 / CUTS)) cut_5 (.clock(clock), .in(rounded), .out(result));
endmodule
