// FP32 multiplication in the manner of PG060's core: what it costs is compared with data/u50/operators.json (tests/test_schedule.py).
// Numbers below the normal range are zeros, rounding is to nearest even, four stages of registers.
module fp32_multiply (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output reg  [31:0] result
);
  reg [31:0] a1, b1;
  reg [47:0] product2, product3;
  reg [9:0] exponent2, exponent3;
  reg sign2, sign3, special2, special3, zero2, zero3;
  wire high = product3[47];
  wire [23:0] kept = high ? product3[47:24] : product3[46:23];
  wire below = high ? product3[23] : product3[22];
  wire rest = high ? |product3[22:0] : |product3[21:0];
  wire [24:0] rounded = {1'b0, kept} + {24'b0, below & (rest | kept[0])};
  wire [9:0] exponent = exponent3 + {9'b0, high} + {9'b0, rounded[24]};
  always @(posedge clock) begin
    a1 <= a;
    b1 <= b;
    product2 <= {1'b1, a1[22:0]} * {1'b1, b1[22:0]};
    exponent2 <= {2'b0, a1[30:23]} + {2'b0, b1[30:23]} - 10'd127;
    sign2 <= a1[31] ^ b1[31];
    special2 <= &a1[30:23] | &b1[30:23];
    zero2 <= ~|a1[30:23] | ~|b1[30:23];
    product3 <= product2;
    exponent3 <= exponent2;
    sign3 <= sign2;
    special3 <= special2;
    zero3 <= zero2;
    result[31] <= sign3;
    if (special3 | (~exponent[9] & exponent >= 10'd255)) result[30:0] <= {8'hff, 23'b0};
    else if (zero3 | exponent[9] | ~|exponent) result[30:0] <= 31'b0;
    else result[30:0] <= {exponent[7:0], rounded[24] ? rounded[23:1] : rounded[22:0]};
  end
endmodule
