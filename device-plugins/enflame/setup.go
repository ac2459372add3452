package enflame

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://support.enflame-tech.com/onlinedoc_dev_2.5.115/4-develop/kmd/kernel_module_guide/content/source/kernel_module_guide.html"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe enflame; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"enflame"},
		Nodes:   []diagnose.Node{{Pattern: "dev/gcu[0-9]*", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "switch on \"4G decoding\" in the BIOS and install the driver from the maker: sudo ./enflame-VERSION.run", See: guide},
		Tool:    diagnose.Fix{Do: "install the driver from the maker, which brings efsmi: sudo ./enflame-VERSION.run", See: guide},
	}
}
