package kunlunxin

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://www.kunlunxin.com/"

// setup is what the cards need on a machine. The module of drivers before 4.0 has another name.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe kunlun; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"kunlun", "xpu_driver"},
		Nodes:   []diagnose.Node{{Pattern: "dev/xpuctrl", Fix: nodes}, {Pattern: "dev/xpu[0-9]*", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "install the XRE package of the maker: it brings the driver", See: guide},
		Tool:    diagnose.Fix{Do: "install the XRE package of the maker: xpu_smi or xpu-smi comes in /usr/local/xpu/bin", See: guide},
	}
}
