package device

import (
	"errors"
	"fmt"
	"os"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// StateTrouble says why the folder of the plugin's state cannot be written by this process, empty when it can. It only
// looks: the folder is made when it is first needed.
func StateTrouble(dir string) string {
	if err := hostfs.Writable(dir); err != nil {
		return err.Error()
	}
	return ""
}

// checkState warns when the state cannot be kept, before a job waits for it. It writes a file and takes it away again: a
// folder may look writable and not be, as on a full disk.
func (p *Plugin) checkState() {
	p.mu.Lock()
	dir := p.set.StateDir
	p.mu.Unlock()
	if err := tryState(dir); err != nil {
		p.log.Warn("state_dir cannot be written: no task gets a card, and no card changes its form; have it writable for the agent", "state_dir", dir, "error", err)
	}
}

func tryState(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("heteroflow-device\n")
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return fmt.Errorf("try to write: %w", err)
	}
	return nil
}
