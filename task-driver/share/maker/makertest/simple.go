package makertest

import (
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// NewHySMI is a fake hy-smi of two cards with 60 compute units. It makes nothing: virtual cards are files.
func NewHySMI() *sharetest.Tools {
	return sharetest.NewTools(map[string]func([]string) share.Output{"hy-smi": func(args []string) share.Output {
		switch strings.Join(args, " ") {
		case "virtual -show-device-info":
			return share.Output{Stdout: "Device 0:\n Actual Device: 0\n Compute units: 60\n Global memory: 34342961152 bytes\n" +
				"Device 1:\n Actual Device: 1\n Compute units: 60\n Global memory: 34342961152 bytes\n"}
		case "--showdriverversion":
			return share.Output{Stdout: "============== System Management Interface =====\nDriver Version: 6.3.31-V1.5.0a\n=====\n"}
		}
		return share.Output{Stderr: "unknown option", ExitCode: 2}
	}})
}

// NewXPUToolkit is Kunlunxin's container toolkit on a node with this version of the driver. It makes nothing: the runtime does.
func NewXPUToolkit(driver string) *sharetest.Tools {
	return sharetest.NewTools(map[string]func([]string) share.Output{
		"/usr/bin/xpu-container-runtime": func([]string) share.Output { return share.Output{ExitCode: 1} },
		"xpu-container-cli": func(args []string) share.Output {
			if strings.Join(args, " ") != "info" {
				return share.Output{Stderr: "usage", ExitCode: 64}
			}
			return share.Output{Stdout: "Driver version: " + driver + "\nXPUML version:  5.0.21.1\n\nDevice Index:   0\nModel:          P800 OAM\n"}
		},
	})
}
