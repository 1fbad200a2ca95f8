// FP32 to a signed integer of 32 bits, towards zero; what does not fit, and NaN, gives 80000000, as x86 does.
module fp32_to_int #(
    parameter LATENCY = 4
) (
    input  wire        clock,
    input  wire [31:0] a,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  wire [4:0] whole_bits = a[27:23] - 5'd31;
  wire too_large = a[30:23] >= 8'd158, is_small = a[30:23] < 8'd127;
  wire sign1, too_large1, is_small1;
  wire [4:0] shift1;
  wire [23:0] significand1;
  delay #(.WIDTH(32), .CYCLES(LATENCY / 2)) cut_1 (
      .clock(clock),
      .in({a[31], too_large, is_small, 5'd31 - whole_bits, 1'b1, a[22:0]}),
      .out({sign1, too_large1, is_small1, shift1, significand1})
  );
  wire [31:0] magnitude = {significand1, 8'b0} >> shift1;
  wire [31:0] integer1 = too_large1 ? 32'h80000000 : is_small1 ? 32'b0 : sign1 ? -magnitude : magnitude;
  delay #(.WIDTH(32), .CYCLES(LATENCY - LATENCY / 2)) cut_2 (.clock(clock), .in(integer1), .out(result));
endmodule
