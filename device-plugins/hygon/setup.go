package hygon

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://developer.sourcefind.cn/tool/"

// setup is what the cards need on a machine. The module was renamed with the driver.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe hycu, or hydcu of an older driver; where it is loaded, \"sudo dmesg\" says why it made no node", See: guide}
	return diagnose.Setup{
		Modules: []string{"hycu", "hydcu"},
		Nodes:   []diagnose.Node{{Pattern: "dev/kfd", Fix: nodes}, {Pattern: "dev/mkfd", Fix: nodes}, {Pattern: "dev/dri/renderD*", Fix: nodes}},
		Groups:  []string{"render", "video"},
		Driver:  diagnose.Fix{Do: "install the driver from the maker: sudo ./rock-VERSION.run, and restart", See: guide},
		Tool:    diagnose.Fix{Do: "install the driver with its tools: hy-smi comes in /opt/hyhal/bin", See: guide},
	}
}
