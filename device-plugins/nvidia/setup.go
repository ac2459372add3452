package nvidia

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const (
	driverGuide  = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
	toolkitGuide = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
)

func reinstall() diagnose.Fix {
	return diagnose.Fix{Do: "restart the machine, so that kernel module and library are of one version; where that does not help, install the driver anew", See: driverGuide}
}

// setup is what the cards need on a machine. That the nodes are made by nvidia-modprobe is told by its manual page; the
// complaints are those of nvidia-smi's manual page and of recorded output.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "sudo nvidia-modprobe -c 0 -u", See: driverGuide}
	nouveau := diagnose.Fix{Do: `echo "blacklist nouveau" | sudo tee /etc/modprobe.d/nouveau.conf, make the initramfs anew (sudo update-initramfs -u, or sudo dracut -f), restart, and install NVIDIA's driver`, See: driverGuide}
	return diagnose.Setup{
		Modules: []string{"nvidia"},
		Wrong:   map[string]diagnose.Fix{"nouveau": nouveau, "nova": nouveau, "nova_core": nouveau},
		Extra:   map[string]diagnose.Fix{"nvidia_uvm": {Do: "sudo nvidia-modprobe -u", See: driverGuide}},
		Nodes:   []diagnose.Node{{Pattern: "dev/nvidiactl", Fix: nodes}, {Pattern: "dev/nvidia[0-9]*", Fix: nodes}, {Pattern: "dev/nvidia-uvm", Fix: nodes}},
		Driver:  diagnose.Fix{Do: "install the driver: sudo apt install nvidia-open, or sudo dnf install nvidia-open, from NVIDIA's repository; then restart", See: driverGuide},
		Tool:    diagnose.Fix{Do: "install nvidia-smi of the same version as the kernel module: it comes with the driver, on Ubuntu and Debian in nvidia-utils-VERSION; or name it with nvidia_smi in the plugin's block", See: driverGuide},
		Runtime: &diagnose.Runtime{
			Name: "nvidia", Programs: []string{"nvidia-ctk", "nvidia-container-runtime"},
			Install:   diagnose.Fix{Do: "sudo apt install nvidia-container-toolkit, from NVIDIA's repository; then sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker", See: toolkitGuide},
			Configure: diagnose.Fix{Do: "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker", See: toolkitGuide},
		},
		Sayings: []diagnose.Saying{
			{Text: "Driver/library version mismatch", Kind: diagnose.NoLibrary, What: "the library is of another version than the loaded kernel module: the driver was updated while it was in use", Fix: reinstall()},
			{Text: "couldn't communicate with the NVIDIA driver", Kind: diagnose.NoModule, What: "nvidia-smi does not reach the kernel module", Fix: diagnose.Fix{Do: "sudo modprobe nvidia; where that is refused, \"sudo dmesg\" says why", See: driverGuide}},
			{Text: "Insufficient Permissions", Kind: diagnose.NoPermission, What: "nvidia-smi may not use the driver", Fix: diagnose.Fix{Do: "run the Nomad agent, and this check, as root"}},
			{Text: "GPU is lost", Kind: diagnose.CardSilent, What: "nvidia-smi says that a card is lost", Fix: diagnose.Fix{Do: "restart the machine; where it is lost again, have the card looked at: nvidia-bug-report.sh collects what NVIDIA asks for", See: "https://docs.nvidia.com/deploy/xid-errors/"}},
		},
	}
}
