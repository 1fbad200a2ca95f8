// All FP32 cores side by side with one latency each: what fp32_cores.cpp compares with the host's arithmetic.
module fp32_cores #(
    parameter ADD = 5, MULTIPLY = 4, DIVIDE = 16, SQUARE_ROOT = 16, COMPARE = 2, FLOOR = 2, CONVERT = 4
) (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire [31:0] sum, product, quotient, root, whole, integer_of,
    output wire [ 3:0] relation
);
  fp32_add #(.LATENCY(ADD)) add_core (.clock(clock), .a(a), .b(b), .result(sum));
  fp32_multiply #(.LATENCY(MULTIPLY)) multiply_core (.clock(clock), .a(a), .b(b), .result(product));
  fp32_divide #(.LATENCY(DIVIDE)) divide_core (.clock(clock), .a(a), .b(b), .result(quotient));
  fp32_square_root #(.LATENCY(SQUARE_ROOT)) square_root_core (.clock(clock), .a(a), .result(root));
  fp32_floor #(.LATENCY(FLOOR)) floor_core (.clock(clock), .a(a), .result(whole));
  fp32_to_int #(.LATENCY(CONVERT)) to_int_core (.clock(clock), .a(a), .result(integer_of));
  genvar i;
  generate
    for (i = 0; i < 4; i = i + 1) begin : one
      fp32_compare #(.LATENCY(COMPARE), .MASK(4'd1 << i)) compare_core (.clock(clock), .a(a), .b(b), .result(relation[i]));
    end
  endgenerate
endmodule

module fp32_all (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire [195:0] scheduled, of_one, of_many
);
  // As in data/u50/latencies.json; a register each; more registers than there are places for.
  fp32_cores as_scheduled (
      .clock(clock), .a(a), .b(b),
      .sum(scheduled[31:0]), .product(scheduled[63:32]), .quotient(scheduled[95:64]), .root(scheduled[127:96]),
      .whole(scheduled[159:128]), .integer_of(scheduled[191:160]), .relation(scheduled[195:192])
  );
  fp32_cores #(
      .ADD(1), .MULTIPLY(1), .DIVIDE(1), .SQUARE_ROOT(1), .COMPARE(1), .FLOOR(1), .CONVERT(1)
  ) of_one_cycle (
      .clock(clock), .a(a), .b(b),
      .sum(of_one[31:0]), .product(of_one[63:32]), .quotient(of_one[95:64]), .root(of_one[127:96]),
      .whole(of_one[159:128]), .integer_of(of_one[191:160]), .relation(of_one[195:192])
  );
  fp32_cores #(
      .ADD(31), .MULTIPLY(31), .DIVIDE(31), .SQUARE_ROOT(31), .COMPARE(31), .FLOOR(31), .CONVERT(31)
  ) of_many_cycles (
      .clock(clock), .a(a), .b(b),
      .sum(of_many[31:0]), .product(of_many[63:32]), .quotient(of_many[95:64]), .root(of_many[127:96]),
      .whole(of_many[159:128]), .integer_of(of_many[191:160]), .relation(of_many[195:192])
  );
endmodule
