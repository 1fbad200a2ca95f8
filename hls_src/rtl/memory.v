// A memory of one load and one store a cycle, as the blocks of the card have them: a word stored in a cycle is there for a load
// of the next; a load in the same cycle gives the word before. STYLE is Vivado's ram_style: ultra, block or distributed.
module memory #(
    parameter WIDTH = 32,
    parameter DEPTH = 512,
    parameter ADDRESS = 9,
    parameter LATENCY = 3,
    /* verilator lint_off UNUSEDPARAM */
    parameter STYLE = "block"
    /* verilator lint_on UNUSEDPARAM */
) (
    input  wire               clock,
    input  wire [ADDRESS-1:0] load_address,
    output wire [  WIDTH-1:0] loaded,
    input  wire               store,
    input  wire [ADDRESS-1:0] store_address,
    input  wire [  WIDTH-1:0] stored
);
  (* ram_style = STYLE *)
  reg [WIDTH-1:0] words[0:DEPTH-1];
  reg [WIDTH-1:0] first;
  always @(posedge clock) begin
    if (store) words[store_address] <= stored;
  end
  always @(posedge clock) first <= words[load_address];
  delay #(.WIDTH(WIDTH), .CYCLES(LATENCY - 1)) rest (.clock(clock), .in(first), .out(loaded));
endmodule
