// AXI4 master that reads or writes one vector of 512 bits at a time: a pulse of `read` or `write` starts a transfer, a pulse of
// `done` ends it. Address and vector stay until then.
module axi_port (
    input  wire         clock,
    input  wire         reset,
    input  wire         read,
    input  wire         write,
    input  wire [ 63:0] address,
    input  wire [511:0] written,
    output reg          done,
    output reg  [511:0] word,
    output reg          awvalid,
    input  wire         awready,
    output wire [ 63:0] awaddr,
    output wire [  7:0] awlen,
    output reg          wvalid,
    input  wire         wready,
    output wire [511:0] wdata,
    output wire [ 63:0] wstrb,
    output wire         wlast,
    input  wire         bvalid,
    output wire         bready,
    output reg          arvalid,
    input  wire         arready,
    output wire [ 63:0] araddr,
    output wire [  7:0] arlen,
    input  wire         rvalid,
    output wire         rready,
    input  wire [511:0] rdata
);
  assign awaddr = address;
  assign araddr = address;
  assign {awlen, arlen} = 16'b0;
  assign wdata = written;
  assign wstrb = {64{1'b1}};
  assign {wlast, bready, rready} = 3'b111;
  always @(posedge clock) begin
    if (write) {awvalid, wvalid} <= 2'b11;
    else begin
      if (awready) awvalid <= 1'b0;
      if (wready) wvalid <= 1'b0;
    end
    if (read) arvalid <= 1'b1;
    else if (arready) arvalid <= 1'b0;
    done <= bvalid | rvalid;
    if (rvalid) word <= rdata;
    if (reset) {awvalid, wvalid, arvalid, done} <= 4'b0;
  end
endmodule
