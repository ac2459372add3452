package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// checkDocker asks the Docker daemon of this machine.
func checkDocker(ctx context.Context) []finding {
	host := docker.DefaultHost()
	daemon, err := docker.Dial(host)
	if err != nil {
		return []finding{warn("Docker", "set DOCKER_HOST to the daemon's address", "%s", err)}
	}
	info, err := daemon.Info(ctx)
	if err = errors.Join(err, daemon.Close()); err != nil {
		return []finding{warn("Docker", "start it where tasks shall run in containers; plain processes do without", "%s does not answer", host)}
	}
	return []finding{ok("Docker", "%s, version %s", host, info.Version)}
}

// checkCards has the device plugin look at the cards of this machine.
func checkCards(ctx context.Context, program string) []finding {
	const name = "cards here"
	if _, err := os.Stat(program); err != nil {
		return []finding{warn(name, "build all programs with \"make build\", or name their folder with -bin-dir", "cannot be looked for: %s is missing", program)}
	}
	cmd := exec.CommandContext(ctx, program, "-once", "-state-dir", os.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return []finding{fail(name, "run \""+program+" -once\" by hand", "cannot be looked for: %s %s", err, strings.TrimSpace(stderr.String()))}
	}
	var list struct {
		Sources []struct {
			Name  string `json:"name"`
			Error string `json:"error"`
		} `json:"sources"`
		Cards []struct {
			Vendor, Model, Reason string
			Healthy               bool
		} `json:"cards"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return []finding{fail(name, "use one version of both programs", "%s prints something else: %s", program, err)}
	}
	var all []finding
	models, sick := map[string]int{}, 0
	for _, card := range list.Cards {
		models[card.Vendor+" "+card.Model]++
		if !card.Healthy {
			sick++
			all = append(all, warn(name, "", "a %s %s is not healthy: %s", card.Vendor, card.Model, card.Reason))
		}
	}
	for _, source := range list.Sources {
		if source.Error != "" {
			all = append(all, warn(name, "", "%s: %s", source.Name, source.Error))
		}
	}
	if len(models) == 0 {
		return append(all, ok(name, "none"))
	}
	words := make([]string, 0, len(models))
	for _, model := range slices.Sorted(maps.Keys(models)) {
		words = append(words, fmt.Sprintf("%d × %s", models[model], model))
	}
	return append([]finding{ok(name, "%s", strings.Join(words, ", "))}, all...)
}
