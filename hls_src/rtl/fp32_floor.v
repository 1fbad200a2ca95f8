// The largest whole FP32 number that is not above the operand. Subnormals are zeros of their sign, every NaN is 7fc00000.
module fp32_floor #(
    parameter LATENCY = 2
) (
    input  wire        clock,
    input  wire [31:0] a,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  // Of an operand between 1 and 2^23: bits of the fraction behind the point.
  wire [7:0] exponent = a[30:23];
  wire [4:0] whole_bits = exponent[4:0] - 5'd31;
  wire is_small = exponent < 8'd127, is_whole = exponent >= 8'd150;
  wire [22:0] behind = {23{1'b1}} >> whole_bits;
  wire [31:0] a1;
  wire [22:0] behind1;
  wire is_small1, is_whole1;
  delay #(.WIDTH(57), .CYCLES(LATENCY / 2)) cut_1 (
      .clock(clock), .in({a, behind, is_small, is_whole}), .out({a1, behind1, is_small1, is_whole1})
  );
  wire is_zero = ~|a1[30:23], is_nan = &a1[30:23] & |a1[22:0];
  wire [30:0] cut = {a1[30:23], a1[22:0] & ~behind1};
  wire [30:0] away = {8'b0, behind1} + 31'd1;  // one, in the place of the first digit before the point
  wire [31:0] floor = is_nan ? 32'h7fc00000
                    : is_zero ? {a1[31], 31'b0}
                    : is_whole1 ? a1
                    : is_small1 ? {a1[31], a1[31] ? 31'h3f800000 : 31'b0}
                    : {a1[31], cut + (a1[31] & |(a1[22:0] & behind1) ? away : 31'd0)};
  delay #(.WIDTH(32), .CYCLES(LATENCY - LATENCY / 2)) cut_2 (.clock(clock), .in(floor), .out(result));
endmodule
