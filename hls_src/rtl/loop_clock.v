// The loop's clock. Verilator stops it while the loop does nothing and nothing is asked of its memories, which makes commands
// that load programs and parameters some ten times faster to simulate; on the card it is the kernel's clock.
module loop_clock (
    input  wire        clock,
    input  wire        wanted,
    input  wire [15:0] host_address,
    output wire        out
);
`ifdef VERILATOR
  reg enabled;
  reg [15:0] last_address;
  reg [3:0] cycles_left;  // until a word at a new address has come through the memory's registers
  always @(posedge clock) begin
    last_address <= host_address;
    if (host_address != last_address) cycles_left <= 4'd8;
    else if (cycles_left != 4'd0) cycles_left <= cycles_left - 4'd1;
  end
  always @(negedge clock) enabled <= wanted | host_address != last_address | cycles_left != 4'd0;
  assign out = clock & enabled;
`else
  assign out = clock;
`endif
endmodule
