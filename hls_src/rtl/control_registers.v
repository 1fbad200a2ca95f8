// AXI4-Lite slave with the registers that Vitis HLS gives a kernel (ap_ctrl_hs): 0x00 control (bit 0 start, 1 done, 2 idle,
// 3 ready, 7 restart), 0x04 and 0x08 interrupts enabled, 0x0c interrupts pending, arguments from 0x10 on. Reading control
// clears done and ready; a pending interrupt is cleared by writing its bit.
module control_registers #(
    parameter WORDS = 8
) (
    input  wire                clock,
    input  wire                reset,
    input  wire [        11:0] awaddr,
    input  wire                awvalid,
    output wire                awready,
    input  wire [        31:0] wdata,
    input  wire [         3:0] wstrb,
    input  wire                wvalid,
    output wire                wready,
    output wire [         1:0] bresp,
    output reg                 bvalid,
    input  wire                bready,
    input  wire [        11:0] araddr,
    input  wire                arvalid,
    output wire                arready,
    output reg  [        31:0] rdata,
    output wire [         1:0] rresp,
    output reg                 rvalid,
    input  wire                rready,
    output reg                 start,
    input  wire                done,
    output wire                interrupt,
    output wire [32*WORDS-1:0] values
);
  reg [32*WORDS-1:0] words;
  reg running, is_done, is_ready, restart, global_enable;
  reg [1:0] enabled, pending;
  assign values = words;
  assign interrupt = global_enable & |pending;
  assign {bresp, rresp} = 4'b0;

  // A write is taken when address and word are there, and the answer to the one before is gone.
  wire takes = awvalid & wvalid & ~bvalid;
  assign awready = takes;
  assign wready  = takes;
  assign arready = ~rvalid;
  wire reads = arvalid & arready;
  wire writes_control = takes & awaddr[11:2] == 10'd0 & wstrb[0];

  integer w, b;
  always @(posedge clock) begin
    if (takes) begin
      for (w = 4; w < WORDS; w = w + 1)
        for (b = 0; b < 4; b = b + 1)
          if (awaddr[11:2] == w[9:0] & wstrb[b]) words[32*w+8*b+:8] <= wdata[8*b+:8];
    end
    if (takes) bvalid <= 1'b1;
    else if (bready) bvalid <= 1'b0;

    if (reads) begin
      rvalid <= 1'b1;
      case (araddr[11:2])
        10'd0: rdata <= {24'b0, restart, 3'b0, is_ready, ~running, is_done, running};
        10'd1: rdata <= {31'b0, global_enable};
        10'd2: rdata <= {30'b0, enabled};
        10'd3: rdata <= {30'b0, pending};
        default: begin
          rdata <= 32'b0;
          for (w = 4; w < WORDS; w = w + 1) if (araddr[11:2] == w[9:0]) rdata <= words[32*w+:32];
        end
      endcase
    end else if (rready) rvalid <= 1'b0;

    start <= 1'b0;
    if (writes_control) restart <= wdata[7];
    if ((writes_control & wdata[0] & ~running) | (done & restart)) begin
      start   <= 1'b1;
      running <= 1'b1;
    end else if (done) running <= 1'b0;
    if (done) {is_done, is_ready} <= 2'b11;
    else if (reads & araddr[11:2] == 10'd0) {is_done, is_ready} <= 2'b00;

    if (takes & awaddr[11:2] == 10'd1 & wstrb[0]) global_enable <= wdata[0];
    if (takes & awaddr[11:2] == 10'd2 & wstrb[0]) enabled <= wdata[1:0];
    pending <= (pending & ~({2{takes & awaddr[11:2] == 10'd3 & wstrb[0]}} & wdata[1:0])) | (enabled & {2{done}});

    if (reset) begin
      words <= {32 * WORDS{1'b0}};
      {start, running, is_done, is_ready, restart, global_enable, bvalid, rvalid} <= 8'b0;
      {enabled, pending} <= 4'b0;
    end
  end
endmodule
