package config

import (
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

func TestPreemption_Rules(t *testing.T) {
	t.Parallel()
	p := New(ServerAddr)
	if rules, err := p.Preemption.Rules(); err != nil || rules != submit.DefaultPreemption() || !rules.Off() {
		t.Errorf("without a block: %+v, %v", rules, err)
	}
	err := p.read("server.hcl", []byte(`preemption {
  mode          = "running"
  min_runtime   = "0s"
  guard         = "1h"
  budget        = 12
  budget_window = "24h"
  max_excess    = 0
}`))
	if err != nil {
		t.Fatal(err)
	}
	want := submit.DefaultPreemption()
	want.Mode, want.MinRuntime, want.Guard, want.Budget, want.Window, want.Excess = preempt.Running, 0, time.Hour, 12, 24*time.Hour, 0
	if rules, err := p.Preemption.Rules(); err != nil || rules != want {
		t.Errorf("rules are %+v, %v; want %+v", rules, err, want)
	}
}

func TestPreemption_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`mode = "queue-only"`: `mode "queue-only": write off, queue_only or running`,
		`guard = "1"`:         `guard "1": write a time of 1m0s or more`,
		`grace = "-1s"`:       `grace "-1s"`,
		`watchdog = "0s"`:     `watchdog "0s"`,
		`budget = -1`:         `budget -1: write a number of cards`,
		`max_excess = 0.5`:    `max_excess 0.5: write 1 or more`,
	} {
		p := New(ServerAddr)
		p.DatabaseURL = "sqlite:///x"
		if err := p.read("server.hcl", []byte("preemption {\n"+text+"\n}")); err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
