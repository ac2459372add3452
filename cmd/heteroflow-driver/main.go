// Command heteroflow-driver is the task driver plugin "heteroflow" for Nomad, and the supervisor of each of its tasks.
// Flags and wiring only: what the driver does lives in task-driver.
package main

import (
	"fmt"
	"os"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/version"
	"github.com/heteroflow/heteroflow/task-driver/driver"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// superviseCommand is the word by which the driver starts a supervisor; it is no command for users.
const superviseCommand = "supervise"

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == superviseCommand:
		os.Exit(supervisor.Main(os.Args[2], driver.Workload))
	case len(os.Args) == 2 && (os.Args[1] == "version" || os.Args[1] == "-version"):
		fmt.Println("heteroflow-driver", version.Version)
		return
	}
	log := nomadplugin.NewLogger(driver.Name)
	d := driver.New(driver.Options{Version: version.Version, Log: log, Launcher: supervisor.Self(superviseCommand)})
	defer d.Close()
	nomadplugin.ServeDriver(d, log)
}
