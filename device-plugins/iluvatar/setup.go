package iluvatar

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://github.com/Deep-Spark/ix-container-toolkit"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe iluvatar; where it is loaded, \"sudo dmesg | grep -i iluvatar\" says why it made no node"}
	return diagnose.Setup{
		Modules: []string{"iluvatar"},
		Nodes:   []diagnose.Node{{Pattern: "dev/iluvatar[0-9]*", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "install the CoreX driver package of the maker, and restart", See: guide},
		Tool:    diagnose.Fix{Do: "install the CoreX driver package of the maker: ixsmi comes in /usr/local/corex/bin", See: guide},
	}
}
