package nomadplugintest_test

import (
	"os"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest/sample"
)

func TestMain(m *testing.M) {
	sample.Main()
	os.Exit(m.Run())
}

func TestSampleDevice(t *testing.T) {
	nomadplugintest.TestDevice(t, sample.Install(t, t.TempDir(), "device", "sample-device"), map[string]any{"count": 3})
}

func TestSampleDriver(t *testing.T) {
	binary := sample.Install(t, t.TempDir(), "driver", "sample-driver")
	nomadplugintest.TestDriver(t, binary, map[string]any{"state_dir": t.TempDir()},
		map[string]any{"command": "/bin/sh", "args": []string{"-c", "echo started on $SAMPLE_DEVICES; while :; do sleep 0.1; done"}},
		nomadplugintest.WithEnv(nil, map[string]string{"SAMPLE_DEVICES": "sample-0"}),
		nomadplugintest.WithOutput("started on sample-0"))
}
