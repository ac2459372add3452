package intel

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://dgpu-docs.intel.com/"

// setup is what the cards need on a machine. Newer kernels and cards have the driver xe.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "\"sudo dmesg | grep -i -e i915 -e xe\" says why the driver made no node: most often the firmware is missing, sudo apt install linux-firmware", See: guide}
	return diagnose.Setup{
		Modules: []string{"xe", "i915"},
		Nodes:   []diagnose.Node{{Pattern: "dev/dri/renderD*", Fix: nodes}},
		Groups:  []string{"render"},
		Driver:  diagnose.Fix{Do: "install a kernel that knows the card, 6.8 or later, or Intel's package intel-i915-dkms; then restart", See: guide},
		Tool:    diagnose.Fix{Do: "sudo apt install xpu-smi, from Intel's repository", See: guide},
	}
}
