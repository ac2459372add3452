package metax

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://developer.metax-tech.com/api/client/document/preview/560/C500_DriverInstallationGuide_CN.html"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe metax; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"metax"},
		Nodes:   []diagnose.Node{{Pattern: "dev/mxcd", Fix: nodes}, {Pattern: "dev/dri/renderD*", Fix: nodes}},
		Groups:  []string{"render", "video"},
		Driver:  diagnose.Fix{Do: "install the driver from the maker: sudo ./metax-driver-VERSION.run, then sudo modprobe metax", See: guide},
		Tool:    diagnose.Fix{Do: "install the maker's package mxsmt: it brings mx-smi, in /opt/mxdriver/bin", See: guide},
	}
}
