package ascend

import "github.com/heteroflow/heteroflow/device-plugins/diagnose"

const (
	driverGuide  = "https://www.hiascend.com/hardware/firmware-drivers/community"
	runtimeGuide = "https://www.hiascend.com/document/detail/en/mindcluster/730/clustersched/schedulingug/dlug_installation_017.html"
)

// setup is what the cards need on a machine.
func setup() diagnose.Setup {
	nodes := diagnose.Fix{Do: "restart the machine; where it stays away, install the driver anew: sudo ./Ascend-hdk-CHIP-npu-driver_VERSION_linux-ARCH.run --full", See: driverGuide}
	runtime := diagnose.Fix{Do: "sudo ./Ascend-docker-runtime_VERSION_linux-ARCH.run --install && sudo systemctl daemon-reload && sudo systemctl restart docker", See: runtimeGuide}
	return diagnose.Setup{
		Modules: []string{"drv_davinci_intf_host", "drv_devmng_host", "drv_davinci_intf"},
		Nodes: []diagnose.Node{
			{Pattern: "dev/davinci_manager", Fix: nodes}, {Pattern: "dev/davinci[0-9]*", Fix: nodes}, {Pattern: "dev/devmm_svm", Fix: nodes}, {Pattern: "dev/hisi_hdc", Fix: nodes},
		},
		Groups: []string{"HwHiAiUser"},
		Driver: diagnose.Fix{Do: "install driver and firmware: sudo ./Ascend-hdk-CHIP-npu-driver_VERSION_linux-ARCH.run --full --install-for-all, sudo ./Ascend-hdk-CHIP-npu-firmware_VERSION.run --full, and restart", See: driverGuide},
		Tool:   diagnose.Fix{Do: "install the driver with its tools: npu-smi comes in /usr/local/bin or /usr/local/sbin", See: driverGuide},
		Runtime: &diagnose.Runtime{
			Name: "ascend", Programs: []string{"/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"},
			Install: runtime, Configure: runtime,
		},
		Sayings: []diagnose.Saying{
			{Text: "dcmi module initialize failed", Kind: diagnose.NoPermission, What: reasonDCMI, Fix: diagnose.Fix{Do: "sudo usermod -a -G HwHiAiUser USER, and sign in anew; or run the Nomad agent, and this check, as root. Where root gets the same answer: restart, or install the driver anew", See: driverGuide}},
		},
	}
}
