// A value CYCLES later; 0 cycles are a wire. A long and wide one is rings in LUT RAM, of which a cycle reads and writes one entry:
// 8 LUTs have 16 bits of 32 entries or 8 bits of 64, and 8 bits of a shift register of 32. Vivado and Yosys make shift
// registers of long and narrow ones. RING_FROM is SHREG_MIN_SIZE in vitis/processor/trainer.cfg: fewer cycles are flip-flops.
// For Verilator all of more than two cycles are one ring; with HARDWARE_DELAYS it has what Vivado has.
`ifdef VERILATOR
`ifndef HARDWARE_DELAYS
`define ONE_RING
`endif
`endif
module delay #(
    parameter WIDTH = 1,
    parameter CYCLES = 1
) (
    input  wire             clock,
    input  wire [WIDTH-1:0] in,
    output wire [WIDTH-1:0] out
);
`ifdef ONE_RING
  localparam RING_WIDTH = 1, RING_FROM = 3, RING_MOST = CYCLES;
`else
  localparam RING_WIDTH = 32;  // with fewer bits the ring's counter takes what its memory saves
  localparam RING_FROM = 10;
  localparam RING_MOST = 65;  // 64 entries, as deep as LUT RAM is without multiplexers, and the register after them
`endif
  generate
    if (CYCLES == 0) begin : wire_only
      wire unused = clock;
      assign out = in;
    end else if (CYCLES == 1) begin : register
      reg [WIDTH-1:0] stage;
      always @(posedge clock) stage <= in;
      assign out = stage;
    end else if (WIDTH >= RING_WIDTH && CYCLES >= RING_FROM) begin : rings
      localparam REST = CYCLES % RING_MOST;  // cycles of a ring at the end, or of registers
      localparam RINGS = CYCLES / RING_MOST + (REST >= RING_FROM ? 1 : 0);
      localparam REGISTERS = REST >= RING_FROM ? 0 : REST;
      genvar i;
      for (i = 0; i < RINGS + REGISTERS; i = i + 1) begin : parts
        localparam LAST = i < CYCLES / RING_MOST ? RING_MOST - 2 : i < RINGS ? REST - 2 : 0;
        wire [WIDTH-1:0] from;
        reg [WIDTH-1:0] last;
        if (i == 0) assign from = in;
        else assign from = parts[i-1].last;
        if (i < RINGS) begin : ring
          localparam BITS = $clog2(LAST + 1);
          (* ram_style = "distributed" *)
          reg [WIDTH-1:0] stages[0:LAST];
          reg [BITS-1:0] place;
          always @(posedge clock) begin
            last <= stages[place];
            stages[place] <= from;
            place <= place == LAST[BITS-1:0] ? {BITS{1'b0}} : place + 1'b1;
          end
        end else begin : register
          always @(posedge clock) last <= from;
        end
      end
      assign out = parts[RINGS+REGISTERS-1].last;
    end else begin : registers
      reg [WIDTH*CYCLES-1:0] stages;
      always @(posedge clock) stages <= {stages[WIDTH*(CYCLES-1)-1:0], in};
      assign out = stages[WIDTH*CYCLES-1:WIDTH*(CYCLES-1)];
    end
  endgenerate
endmodule
