# Packages the Verilog of `make rtl RTL=FOLDER` as an RTL kernel, an .xo that v++ --link takes. Untried: no Vivado at hand.
#   vivado -mode batch -source package.tcl -tclargs FOLDER OUTPUT.xo PART
lassign $argv folder output part
create_project -force -part $part trainer $folder/vivado
add_files [glob $folder/*.v]
set_property top trainer [current_fileset]
update_compile_order -fileset sources_1
ipx::package_project -force -root_dir $folder/ip -vendor xilinx.com -library hls -name trainer -version 1.0 \
    -taxonomy /KernelIP -import_files -set_current true
set core [ipx::current_core]
foreach port {s_axi_control m_axi_records m_axi_results m_axi_memory m_axi_program_image} {
    ipx::associate_bus_interfaces -busif $port -clock ap_clk $core
}
ipx::associate_bus_interfaces -clock ap_clk -reset ap_rst_n $core
set_property sdx_kernel true $core
set_property sdx_kernel_type rtl $core
set_property vitis_drc {ctrl_protocol ap_ctrl_hs} $core
set_property ipi_drc {ignore_freq_hz true} $core
ipx::create_xgui_files $core
ipx::update_checksums $core
ipx::check_integrity -kernel $core
ipx::save_core $core
package_xo -force -xo_path $output -kernel_name trainer -ip_directory $folder/ip -kernel_xml $folder/kernel.xml
