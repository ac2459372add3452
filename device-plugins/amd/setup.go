package amd

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"

// setup is what the cards need on a machine. Containers need no runtime of the maker: the device nodes are enough.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo modprobe amdgpu; where it is loaded, \"sudo dmesg | grep -i -e kfd -e amdgpu\" says why it made no node", See: guide}
	groups := diagnose.Fix{Do: "sudo usermod -a -G render,video USER, and sign in anew; or run the Nomad agent, and this check, as root", See: guide}
	return diagnose.Setup{
		Modules: []string{"amdgpu"},
		Wrong:   map[string]diagnose.Fix{"radeon": {Do: "start the kernel with radeon.si_support=0 radeon.cik_support=0 amdgpu.si_support=1 amdgpu.cik_support=1: the driver radeon cannot compute", See: guide}},
		Nodes:   []diagnose.Node{{Pattern: "dev/kfd", Fix: nodes}, {Pattern: "dev/dri/renderD*", Fix: nodes}},
		Groups:  []string{"render", "video"},
		Driver:  diagnose.Fix{Do: "sudo apt install amdgpu-dkms, or sudo dnf install amdgpu-dkms, from AMD's repository; then restart", See: guide},
		Tool:    diagnose.Fix{Do: "sudo apt install amd-smi-lib, or sudo dnf install amd-smi-lib, from AMD's repository", See: guide},
		Sayings: []diagnose.Saying{
			{Text: "Permission needed to access required GPU device node", Kind: diagnose.NoPermission, What: "the tool says that this user may not use the device nodes", Fix: groups},
			{Text: "No JSON data to report", Kind: diagnose.NoModule, What: "the tool finds no card of the driver", Fix: diagnose.Fix{Do: "sudo modprobe amdgpu", See: guide}},
		},
	}
}
