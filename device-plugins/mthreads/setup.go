package mthreads

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const guide = "https://developer.mthreads.com/sdk/download/CloudNative"

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	return diagnose.Setup{
		Modules: []string{"mtgpu"},
		Nodes: []diagnose.Node{
			{Pattern: "dev/mtgpu.*", Fix: diagnose.Fix{Do: "sudo modprobe -rv mtgpu && sudo modprobe mtgpu", See: guide}},
			{Pattern: "dev/dri/renderD*", Fix: diagnose.Fix{Do: "sudo modprobe -rv mtgpu && sudo modprobe mtgpu", See: guide}},
		},
		Groups: []string{"render", "video"},
		Driver: diagnose.Fix{Do: "install the driver package from the maker, sudo apt install ./musa_VERSION_amd64.deb, and restart", See: guide},
		Tool:   diagnose.Fix{Do: "install the package mtml of the same release as the driver: it brings mthreads-gmi", See: guide},
		Runtime: &diagnose.Runtime{
			Name: "mthreads", Programs: []string{"mthreads-container-runtime", "/usr/bin/musa/docker"},
			Install:   diagnose.Fix{Do: "install the package mt-container-toolkit from the maker, then (cd /usr/bin/musa && sudo ./docker setup $PWD)", See: guide},
			Configure: diagnose.Fix{Do: "(cd /usr/bin/musa && sudo ./docker setup $PWD)", See: guide},
		},
	}
}
