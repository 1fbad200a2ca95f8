// FP32 addition in logic, as PG060's core without DSPs: what it costs is compared with data/u50/operators.json
// (tests/test_schedule.py). Numbers below the normal range are zeros, rounding is to nearest even, five stages of registers.
module fp32_add (
    input  wire        clock,
    input  wire [31:0] a,
    input  wire [31:0] b,
    output reg  [31:0] result
);
  reg [31:0] large1, small1;
  reg [26:0] large2, small2;
  reg [7:0] exponent2, exponent3, exponent4;
  reg sign2, sign3, sign4, minus2, special2, special3, special4;
  reg [27:0] sum3, sum4;
  reg [4:0] shift4;
  wire swap = a[30:0] < b[30:0];
  wire [7:0] apart = large1[30:23] - small1[30:23];
  wire [26:0] small = {|small1[30:23], small1[22:0], 3'b0};
  wire [26:0] aligned = |apart[7:5] ? 27'b0 : small >> apart[4:0];
  wire lost = |apart[7:5] ? |small : |(small & ~({27{1'b1}} << apart[4:0]));
  integer i;
  reg [4:0] zeros;
  always @* begin
    zeros = 5'd28;
    for (i = 0; i < 28; i = i + 1) if (sum3[i]) zeros = 5'd27 - i[4:0];
  end
  wire [27:0] normal = sum4 << shift4;
  wire [24:0] rounded = {1'b0, normal[27:4]} + {24'b0, normal[3] & (|normal[2:0] | normal[4])};
  wire [9:0] exponent = {2'b0, exponent4} + 10'd1 - {5'b0, shift4} + {9'b0, rounded[24]};
  always @(posedge clock) begin
    large1 <= swap ? b : a;
    small1 <= swap ? a : b;
    large2 <= {|large1[30:23], large1[22:0], 3'b0};
    small2 <= {aligned[26:1], aligned[0] | lost};
    exponent2 <= large1[30:23];
    sign2 <= large1[31];
    minus2 <= large1[31] ^ small1[31];
    special2 <= &large1[30:23];
    sum3 <= minus2 ? {1'b0, large2} - {1'b0, small2} : {1'b0, large2} + {1'b0, small2};
    exponent3 <= exponent2;
    sign3 <= sign2;
    special3 <= special2;
    sum4 <= sum3;
    shift4 <= zeros;
    exponent4 <= exponent3;
    sign4 <= sign3;
    special4 <= special3;
    result[31] <= sign4 & (|sum4 | special4);
    if (special4 | (~exponent[9] & exponent >= 10'd255)) result[30:0] <= {8'hff, 23'b0};
    else if (~|sum4 | exponent[9] | ~|exponent) result[30:0] <= 31'b0;
    else result[30:0] <= {exponent[7:0], rounded[24] ? rounded[23:1] : rounded[22:0]};
  end
endmodule
