package driver

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/modelcache"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
)

// Config is the plugin's config block in the agent's configuration.
type Config struct {
	StateDir       string   `codec:"state_dir"`
	GrantPublicKey string   `codec:"grant_public_key"` // base64 of an Ed25519 public key; empty: no grant is accepted
	OrphanAfter    string   `codec:"orphan_after"`
	ReconcileEvery string   `codec:"reconcile_every"`
	Docker         *Docker  `codec:"docker"`
	Process        *Process `codec:"process"`

	RequireGrant bool                `codec:"require_grant"`
	Share        map[string][]string `codec:"share"` // backends by brand, in the order in which they are tried
	Bronze       *Bronze             `codec:"bronze"`
	HAMiLibrary  string              `codec:"hami_library"` // of the host; empty: where HAMi puts it
	Models       *Models             `codec:"models"`

	Server string `codec:"server"` // address of the placement service, where the members of gangs meet; empty: none start here
	Token  string `codec:"token"`  // a key of the kind node
}

// Process are the options of the process runtime.
type Process struct {
	Enabled bool   `codec:"enabled"`
	User    string `codec:"user"`
}

const defaultStateDir = "/var/lib/heteroflow"

// configSchema is the schema of Config.
func configSchema() *hclspec.Spec {
	return withFields(nomadplugin.Fields{
		"state_dir":        nomadplugin.OptString("state_dir", defaultStateDir),
		"grant_public_key": nomadplugin.Attr("grant_public_key", "string", false),
		"orphan_after":     nomadplugin.OptString("orphan_after", "10m"),
		"reconcile_every":  nomadplugin.OptString("reconcile_every", share.ReconcileEvery.String()),
		"server":           nomadplugin.Attr("server", "string", false),
		"token":            nomadplugin.Attr("token", "string", false),
		"docker":           nomadplugin.Block("docker", false, dockerSchema()),
		"process": nomadplugin.Block("process", false, nomadplugin.Object(nomadplugin.Fields{
			"enabled": nomadplugin.OptBool("enabled", false),
			"user":    nomadplugin.Attr("user", "string", false),
		})),
	}, shareFields(), modelFields())
}

// settings is a Config that has been checked.
type settings struct {
	Config
	key         ed25519.PublicKey // nil: no grant is accepted
	orphanAfter time.Duration     // 0: never
	order       share.Order
	overuse     bronze.Policy
	cache       modelcache.Options
	models      *modelcache.Cache

	reconcileEvery time.Duration
}

// settle fills defaults and checks. Each problem is a sentence that says what to write.
func (c Config) settle() (settings, error) {
	s := settings{Config: c}
	if s.Docker == nil {
		s.Docker = &Docker{Enabled: true}
	}
	if s.Process == nil {
		s.Process = &Process{}
	}
	if s.StateDir == "" {
		s.StateDir = defaultStateDir
	}
	var problems []error
	if !filepath.IsAbs(s.StateDir) {
		problems = append(problems, fmt.Errorf("state_dir: %q is not absolute: write a full path, for example %q", s.StateDir, defaultStateDir))
	}
	problems = append(problems, s.Docker.settle())
	if s.GrantPublicKey != "" {
		key, err := base64.StdEncoding.DecodeString(s.GrantPublicKey)
		if err != nil || len(key) != ed25519.PublicKeySize {
			problems = append(problems, errors.New("grant_public_key: it is not an Ed25519 key: write the base64 text that the placement service shows as public_key at /api/v1/info"))
		}
		s.key = key
	}
	problems = append(problems, s.settleShares(), s.settleModels(), c.checkServer())
	if s.OrphanAfter != "" {
		d, err := time.ParseDuration(s.OrphanAfter)
		if err != nil || d < 0 {
			problems = append(problems, fmt.Errorf(`orphan_after: %q is not a duration: write for example "10m", or "0s" to keep tasks nobody asks for`, s.OrphanAfter))
		}
		s.orphanAfter = d
	}
	s.reconcileEvery = share.ReconcileEvery
	if s.ReconcileEvery != "" {
		d, err := time.ParseDuration(s.ReconcileEvery)
		if err != nil || d < leastReconcile || d > share.ReconcileEvery {
			problems = append(problems, fmt.Errorf(`reconcile_every: %q is not a duration from %s to %s: write for example "30s"`, s.ReconcileEvery, leastReconcile, share.ReconcileEvery))
		}
		s.reconcileEvery = d
	}
	return s, errors.Join(problems...)
}

// leastReconcile bounds how much of a processor the looks for leftovers take, which ask every maker's tool.
const leastReconcile = time.Second

func (s settings) tasksDir() string  { return filepath.Join(s.StateDir, "tasks") }
func (s settings) leasesDir() string { return filepath.Join(s.StateDir, "leases") }
