// FP32 comparison: whether one of the relations of MASK {unordered, greater, equal, less} holds. Subnormals are zeros.
module fp32_compare #(
    parameter LATENCY = 2,
    parameter [3:0] MASK = 4'b0001
) (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output wire        result
);
  /* verilator no_inline_module */
  wire [31:0] a1, b1;
  delay #(.WIDTH(64), .CYCLES(LATENCY / 2)) cut_1 (
      .clock(clock),
      .in({a[31] & |a[30:23], |a[30:23] ? a[30:0] : 31'b0, b[31] & |b[30:23], |b[30:23] ? b[30:0] : 31'b0}),
      .out({a1, b1})
  );
  wire unordered = &a1[30:23] & |a1[22:0] | &b1[30:23] & |b1[22:0];
  wire equal = a1 == b1;
  wire below = a1[31] != b1[31] ? a1[31] : a1[31] ? a1[30:0] > b1[30:0] : a1[30:0] < b1[30:0];
  wire [3:0] relation = unordered ? 4'b1000 : equal ? 4'b0010 : below ? 4'b0001 : 4'b0100;
  delay #(.WIDTH(1), .CYCLES(LATENCY - LATENCY / 2)) cut_2 (.clock(clock), .in(|(relation & MASK)), .out(result));
endmodule
