package vendorcli

import "syscall"

// endWithUs has the kernel kill a tool when this process ends, however it ends: a tool that hangs would stay for ever, one
// more at every restart of the plugin, and keep the driver from being unloaded. What the tool itself started is not killed.
// The kernel goes by the thread that started the tool: see Run.
func endWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
