package postgres

import "syscall"

// dieWithParent makes the kernel shut the server down when we are gone, however that came.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
