package cambricon

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://sdk.cambricon.com/"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe cambricon_drv; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"cambricon_drv"},
		Nodes:   []diagnose.Node{{Pattern: "dev/cambricon_dev*", Fix: nodes}, {Pattern: "dev/cambricon_ctl", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "install the driver package of the maker, cambricon-mlu-driver, and restart", See: guide},
		Tool:    diagnose.Fix{Do: "install the driver with its tools: it brings /usr/bin/cnmon", See: guide},
	}
}
