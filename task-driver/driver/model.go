package driver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

// envModel is where a task finds its model.
const envModel = "HETEROFLOW_MODEL_PATH"

// Models are the options of the node's cache of models.
type Models struct {
	Dir       string   `codec:"dir"`
	MaxSize   string   `codec:"max_size"`
	Peers     []string `codec:"peers"`
	FileRoots []string `codec:"file_roots"`
	AskSource bool     `codec:"ask_source"`
	S3        *struct {
		Endpoint     string `codec:"endpoint"`
		Region       string `codec:"region"`
		AccessKey    string `codec:"access_key"`
		SecretKey    string `codec:"secret_key"`
		SessionToken string `codec:"session_token"`
	} `codec:"s3"`
}

// ModelConfig is the model of a task.
type ModelConfig struct {
	Source   string `codec:"source"`
	Checksum string `codec:"checksum"`
	Path     string `codec:"path"` // in the task; for a process, on the node
}

// modelFields are the options of models in the plugin's config.
func modelFields() nomadplugin.Fields {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	list := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "list(string)", false) }
	return nomadplugin.Fields{"models": nomadplugin.Block("models", false, nomadplugin.Object(nomadplugin.Fields{
		"dir": text("dir"), "max_size": text("max_size"), "peers": list("peers"), "file_roots": list("file_roots"),
		"ask_source": nomadplugin.OptBool("ask_source", false),
		"s3": nomadplugin.Block("s3", false, nomadplugin.Object(nomadplugin.Fields{
			"endpoint": text("endpoint"), "region": text("region"), "access_key": text("access_key"),
			"secret_key": text("secret_key"), "session_token": text("session_token"),
		})),
	}))}
}

// modelSchema is the schema of ModelConfig.
func modelSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"source": nomadplugin.Attr("source", "string", false), "checksum": nomadplugin.Attr("checksum", "string", false),
		"path": nomadplugin.Attr("path", "string", false),
	})
}

// settleModels checks the options of models and turns them into those of the cache.
func (s *settings) settleModels() error {
	m := s.Models
	if m == nil {
		m = &Models{}
	}
	s.cache = modelcache.Options{Dir: m.Dir, Peers: m.Peers, FileRoots: m.FileRoots, AskSource: m.AskSource}
	if s.cache.Dir == "" {
		s.cache.Dir = filepath.Join(s.StateDir, "models")
	}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf("models."+format, args...)) }
	if !filepath.IsAbs(s.cache.Dir) {
		bad("dir: %q is not absolute: write a full path, on a disk with room for models", s.cache.Dir)
	}
	if m.MaxSize != "" {
		mib, err := accel.ParseMemoryMiB(m.MaxSize)
		if err != nil || mib == 0 {
			bad(`max_size: %q is not a size: write for example "500GiB", or leave it out to use what the disk has`, m.MaxSize)
		}
		s.cache.MaxBytes = int64(mib) << 20
	}
	for _, p := range m.Peers {
		if u, err := url.Parse(p); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" {
			bad(`peers: one is no address: write what serves the folder models of another node, for example "http://gpu-2:9000/models"`)
		}
	}
	for _, root := range m.FileRoots {
		if !filepath.IsAbs(root) || filepath.Clean(root) == string(filepath.Separator) {
			bad("file_roots: %q would not do: write the full path of a folder that holds models", root)
		}
	}
	if s3 := m.S3; s3 != nil {
		if (s3.AccessKey == "") != (s3.SecretKey == "") {
			bad("s3: of access_key and secret_key one is missing: write both, or none")
		}
		if err := modelcache.CheckEndpoint(s3.Endpoint); err != nil {
			bad("s3.endpoint: %w", err)
		}
		s.cache.S3 = modelcache.S3{Endpoint: s3.Endpoint, Region: s3.Region, AccessKey: s3.AccessKey, SecretKey: s3.SecretKey, SessionToken: s3.SessionToken}
	}
	return errors.Join(problems...)
}

// newModels makes the cache of the settings.
func (s settings) newModels(log hclog.Logger) *modelcache.Cache {
	o := s.cache
	o.Log = log.Named("models")
	return modelcache.New(o)
}

// validateModel checks what can be told without a node.
func (tc TaskConfig) validateModel(bad func(key, format string, args ...any)) {
	m := tc.Model
	if m == nil {
		return
	}
	if err := modelcache.Check(m.Source, m.Checksum); err != nil {
		bad("model", "%s", err)
	}
	switch {
	case m.Path == "":
	case tc.Runtime == runtimeProcess:
		bad("model", "path is for containers: leave it out, a process finds its model at $"+envModel)
	case !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/" || strings.ContainsRune(m.Path, ':') || access.GuardedTarget(m.Path):
		bad("model", "path %q is no place for it: write a full path in the container, for example /models/llama.gguf", m.Path)
	}
}

// placeModel decides where the task finds its model. Nothing is touched.
func (p *plan) placeModel(s settings) error {
	if p.tc.Model == nil {
		return nil
	}
	m := *p.tc.Model
	found, err := s.models.Locate(m.Source, m.Checksum)
	if err != nil {
		return fmt.Errorf("config.model: %w", err)
	}
	switch {
	case p.tc.Runtime == runtimeProcess:
		m.Path = found.Path
	case m.Path == "":
		m.Path = "/models/" + found.Name
	}
	p.model, p.tc.Model = found, &m
	return nil
}

// setModel puts the model's place into a task's environment.
func (tc TaskConfig) setModel(env map[string]string) {
	if tc.Model != nil {
		env[envModel] = tc.Model.Path
	}
}

// applyModel mounts the model, in place of what the job mounts there. Nobody may write to it: others use it too.
func (p *plan) applyModel(c *docker.Container, options *Docker) {
	if p.tc.Model == nil {
		return
	}
	m := docker.Mount{Type: "bind", Source: p.model.Path, Target: p.tc.Model.Path, ReadOnly: true}
	if options.SELinux != "" {
		m.SELinux = "z"
	}
	c.Mounts = replaceMount(c.Mounts, m)
}

// fetchModel makes sure that the node has the task's model.
func (d *Driver) fetchModel(ctx context.Context, p *plan, event func(string)) error {
	m := p.tc.Model
	if m == nil {
		return nil
	}
	s, _ := d.current()
	ask := modelcache.Ask{TaskID: p.cfg.GetId(), Source: m.Source, Checksum: m.Checksum, Env: p.env}
	if _, err := s.models.Ensure(ctx, ask, event); err != nil {
		return fmt.Errorf("config.model: %w", err)
	}
	return nil
}
