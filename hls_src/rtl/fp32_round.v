// The end of every FP32 operator: round to nearest even, flush results below the normal range to zero, overflow to infinity.
// Nothing here is registered. `exponent` (signed, biased) is that of a significand whose first bit is `significand[26]`;
// bits 2..0 are guard, round and sticky.
module fp32_round (
    input  wire               sign,
    input  wire signed [ 9:0] exponent,
    input  wire        [26:0] significand,
    input  wire               is_zero,
    input  wire               is_infinite,
    input  wire               is_nan,
    output wire        [31:0] result
);
  wire up = significand[2] & (|significand[1:0] | significand[3]);
  wire [24:0] rounded = {1'b0, significand[26:3]} + {24'b0, up};
  wire signed [9:0] final_exponent = exponent + {9'b0, rounded[24]};
  wire overflows = final_exponent >= 10'sd255;
  wire underflows = final_exponent <= 10'sd0;
  wire [22:0] fraction = rounded[24] ? rounded[23:1] : rounded[22:0];
  assign result = is_nan ? 32'h7fc00000
                : is_infinite ? {sign, 8'hff, 23'b0}
                : is_zero | underflows ? {sign, 31'b0}
                : overflows ? {sign, 8'hff, 23'b0}
                : {sign, final_exponent[7:0], fraction};
endmodule
