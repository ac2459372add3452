package dev

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// The plugins' names, which are their file names where an agent looks for them.
const (
	devicePlugin = "heteroflow-device"
	driverPlugin = "heteroflow"
)

// programs are the plugins' file names as they are built: "heteroflow" is this program's there.
var programs = map[string]string{devicePlugin: "heteroflow-device", driverPlugin: "heteroflow-driver"}

// simulated is the machine that is shown when there are no cards: one with every brand.
//
//go:embed simulated.hcl
var simulated []byte

// inventory is what the machine has.
type inventory struct {
	sim     string // file of simulated cards; empty: the machine's own
	brands  map[string]int
	cards   int
	docker  bool
	whyNot  string // why Docker cannot be used
	process bool
}

// look finds out about cards and Docker.
func look(ctx context.Context, o Options) (inventory, error) {
	found := inventory{sim: o.Sim, brands: map[string]int{}}
	if err := dockerAnswers(ctx); err != nil {
		found.whyNot = "no Docker daemon answers at " + docker.DefaultHost()
	} else {
		found.docker = true
	}
	found.process = o.Process || !found.docker
	if o.Sim != "" {
		abs, err := filepath.Abs(o.Sim)
		if err != nil {
			return found, fmt.Errorf("find the file of simulated cards: %w", err)
		}
		found.sim = abs
	}
	if err := found.count(ctx, o); err != nil {
		return found, err
	}
	if found.cards == 0 && found.sim == "" {
		found.sim = filepath.Join(o.DataDir, "simulated.hcl")
		if _, err := os.Stat(found.sim); errors.Is(err, os.ErrNotExist) { // an edited one is kept
			if err := os.WriteFile(found.sim, simulated, 0o600); err != nil {
				return found, fmt.Errorf("write simulated cards: %w", err)
			}
		}
		return found, found.count(ctx, o)
	}
	return found, nil
}

// count asks the device plugin for the cards.
func (found *inventory) count(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	args := []string{"-once", "-state-dir", filepath.Join(o.home, "state")}
	if found.sim != "" {
		args = append(args, "-sim", found.sim)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.DataDir, "plugins", devicePlugin), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("look for cards: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var list struct {
		Cards []struct {
			Vendor string `json:"vendor"`
		} `json:"cards"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return fmt.Errorf("read the list of cards: %w", err)
	}
	found.cards, found.brands = len(list.Cards), map[string]int{}
	for _, c := range list.Cards {
		found.brands[c.Vendor]++
	}
	return nil
}

func (found inventory) describe() string {
	text := fmt.Sprintf("%d cards of %d brands", found.cards, len(found.brands))
	if found.sim != "" {
		return text + ", simulated by " + found.sim
	}
	return text + ", this machine's"
}

func (found inventory) runtimes() string {
	switch {
	case found.docker && found.process:
		return "Docker; plain processes are allowed too"
	case found.docker:
		return "Docker"
	}
	return found.whyNot + ": tasks run as plain processes, with runtime = \"process\" in their config"
}

// dockerAnswers asks the Docker daemon for a sign of life.
func dockerAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	d, err := docker.Dial(docker.DefaultHost())
	if err != nil {
		return err
	}
	_, err = d.Info(ctx)
	return errors.Join(err, d.Close())
}

// install puts a plugin into the plugin folder, which must hold nothing else: an agent starts every program there.
func install(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("find the plugin %s beside this program: %w\nBuild all programs with \"make build\", or name their folder with -bin-dir", filepath.Base(from), err)
	}
	defer source.Close()
	// A running plugin keeps its file: the old one is unlinked, not overwritten.
	fresh := to + ".new-" + strconv.Itoa(os.Getpid())
	target, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o700)
	if err != nil {
		return fmt.Errorf("install plugin: %w", err)
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Close()); err != nil {
		return fmt.Errorf("install plugin: %w", err)
	}
	if err := os.Rename(fresh, to); err != nil {
		return fmt.Errorf("install plugin: %w", err)
	}
	return nil
}

// askKey asks the placement service for the public key of its grants.
func askKey(ctx context.Context, url string) (string, error) {
	c, err := client.NewClientWithResponses(url)
	if err != nil {
		return "", err
	}
	answer, err := c.GetInfoWithResponse(ctx)
	if err != nil {
		return "", err
	}
	if answer.StatusCode() != http.StatusOK || answer.JSON200 == nil {
		return "", fmt.Errorf("the placement service answers %s", answer.Status())
	}
	return answer.JSON200.PublicKey, nil
}
