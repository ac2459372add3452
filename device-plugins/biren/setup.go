package biren

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://developer.birentech.com/"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe biren; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"biren"},
		Nodes:   []diagnose.Node{{Pattern: "dev/biren-m", Fix: nodes}, {Pattern: "dev/biren/card_*", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "install the driver from the maker: sudo ./biren-driver_VERSION_linux-ARCH.run", See: guide},
		Tool:    diagnose.Fix{Do: "install the driver with its tools: brsmi comes in /usr/local/birensupa/driver/bin", See: guide},
	}
}
