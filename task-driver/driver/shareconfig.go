package driver

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/hami"
)

// Bronze are the options of shares by agreement.
type Bronze struct {
	Overuse string `codec:"overuse"`
}

// shareFields are the options of shares in the plugin's config.
func shareFields() nomadplugin.Fields {
	brands := nomadplugin.Fields{}
	for _, v := range accel.Vendors() {
		brands[string(v)] = nomadplugin.Attr(string(v), "list(string)", false)
	}
	return nomadplugin.Fields{
		"require_grant": nomadplugin.OptBool("require_grant", false),
		"share":         nomadplugin.Block("share", false, nomadplugin.Object(brands)),
		"hami_library":  nomadplugin.OptString("hami_library", hami.DefaultLibrary),
		"bronze": nomadplugin.Block("bronze", false, nomadplugin.Object(nomadplugin.Fields{
			"overuse": nomadplugin.OptString("overuse", string(bronze.Warn)),
		})),
	}
}

// withFields adds options to a schema's.
func withFields(fields nomadplugin.Fields, more ...nomadplugin.Fields) *hclspec.Spec {
	for _, m := range more {
		for name, spec := range m {
			fields[name] = spec
		}
	}
	return nomadplugin.Object(fields)
}

// settleShares checks the options of shares. Names of backends are checked when those are made.
func (s *settings) settleShares() error {
	var problems []error
	s.order = share.Order{}
	for name, backends := range s.Share {
		if len(backends) > 0 {
			s.order[accel.Vendor(name)] = backends
		}
	}
	text := ""
	if s.Bronze != nil {
		text = s.Bronze.Overuse
	}
	var err error
	if s.overuse, err = bronze.ParsePolicy(text); err != nil {
		problems = append(problems, fmt.Errorf("bronze.overuse: %w", err))
	}
	if s.HAMiLibrary != "" && !filepath.IsAbs(s.HAMiLibrary) {
		problems = append(problems, fmt.Errorf("hami_library: %q is not absolute: write a full path, for example %q", s.HAMiLibrary, hami.DefaultLibrary))
	}
	if s.RequireGrant && s.key == nil {
		problems = append(problems, errors.New("require_grant: it needs grant_public_key, without which no grant is accepted: write the text that the placement service shows as public_key at /api/v1/info"))
	}
	return errors.Join(problems...)
}

func (s settings) sharesDir() string { return filepath.Join(s.StateDir, "shares") }
