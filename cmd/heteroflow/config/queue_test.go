package config

import (
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/submit"
)

func TestQueue_Patience(t *testing.T) {
	t.Parallel()
	p := New(ServerAddr)
	if d, err := p.Queue.Waits(); err != nil || d != submit.DefaultPatience {
		t.Errorf("without a block: %v, %v", d, err)
	}
	if err := p.read("server.hcl", []byte(`queue { patience = "90s" }`)); err != nil {
		t.Fatal(err)
	}
	if d, err := p.Queue.Waits(); err != nil || d != 90*time.Second {
		t.Errorf("patience is %v, %v", d, err)
	}
	for _, text := range []string{"0s", "soon", "-1m"} {
		p := New(ServerAddr)
		p.DatabaseURL, p.Queue = "sqlite:///x", &Queue{Patience: text}
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "queue patience") || !strings.Contains(err.Error(), "write a time of 1s or more") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
