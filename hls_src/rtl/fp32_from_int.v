// A signed integer of 32 bits to FP32, rounded to nearest even.
module fp32_from_int #(
    parameter LATENCY = 4
) (
    input  wire        clock,
    input  wire [31:0] a,
    output wire [31:0] result
);
  /* verilator no_inline_module */
  wire sign1;
  wire [31:0] magnitude1;
  delay #(.WIDTH(33), .CYCLES(LATENCY / 2)) cut_1 (
      .clock(clock), .in({a[31], a[31] ? -a : a}), .out({sign1, magnitude1})
  );
  integer i;
  reg [4:0] zeros;
  always @* begin
    zeros = 5'd0;
    for (i = 0; i < 32; i = i + 1) if (magnitude1[i]) zeros = 5'd31 - i[4:0];
  end
  wire [31:0] normal = magnitude1 << zeros;
  wire [31:0] rounded;
  fp32_round round (
      .sign(sign1),
      .exponent(10'd158 - {5'b0, zeros}),
      .significand({normal[31:6], |normal[5:0]}),
      .is_zero(~|magnitude1),
      .is_infinite(1'b0),
      .is_nan(1'b0),
      .result(rounded)
  );
  delay #(.WIDTH(32), .CYCLES(LATENCY - LATENCY / 2)) cut_2 (.clock(clock), .in(rounded), .out(result));
endmodule
