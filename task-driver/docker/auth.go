package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// hubServer is the key under which docker login keeps the credentials of Docker Hub.
const hubServer = "https://index.docker.io/v1/"

// helperTimeout bounds one call of a credential helper.
const helperTimeout = 30 * time.Second

// AuthFromFile finds the credentials for an image in a file as docker login writes it: in the file itself, else by the
// helper it names for the image's registry, else by the one it names for all. It returns nil when there are none.
// Errors never hold credentials.
func AuthFromFile(ctx context.Context, path, ref string) (*Auth, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read registry credentials: %w", err)
	}
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
		CredHelpers map[string]string `json:"credHelpers"`
		CredsStore  string            `json:"credsStore"`
	}
	if err := json.Unmarshal(body, &file); err != nil {
		return nil, fmt.Errorf("registry credentials in %s are not the JSON that docker login writes", path)
	}
	server := registryOf(ref)
	for key, entry := range file.Auths {
		if trimServer(key) != trimServer(server) || entry.Auth == "" && entry.IdentityToken == "" {
			continue // with a helper, docker login leaves an empty entry
		}
		plain, err := base64.StdEncoding.DecodeString(entry.Auth)
		user, password, ok := strings.Cut(string(plain), ":")
		if err != nil || !ok && entry.IdentityToken == "" {
			return nil, fmt.Errorf("registry credentials of %s in %s are not base64 of user:password", key, path)
		}
		return &Auth{Username: user, Password: password, ServerAddress: key, IdentityToken: entry.IdentityToken}, nil
	}
	helper := file.CredsStore
	for key, name := range file.CredHelpers {
		if trimServer(key) == trimServer(server) {
			helper = name
		}
	}
	if helper == "" {
		return nil, nil
	}
	return AuthFromHelper(ctx, helper, ref)
}

// AuthFromHelper asks the program docker-credential-<helper> on PATH, by the protocol of Docker's credential helpers. It
// returns nil when the helper has none for the image's registry. Errors never hold what the helper printed.
func AuthFromHelper(ctx context.Context, helper, ref string) (*Auth, error) {
	if helper == "" || strings.ContainsAny(helper, "/\\") {
		return nil, fmt.Errorf("credential helper %q is not a name: write what follows docker-credential- in the program's name", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	server := registryOf(ref)
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(server), time.Second
	out, err := cmd.Output()
	if err != nil && strings.Contains(string(out), "credentials not found") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("credential helper docker-credential-%s failed for %s: %w", helper, trimServer(server), err)
	}
	var got struct{ ServerURL, Username, Secret string }
	if json.Unmarshal(out, &got) != nil || got.Secret == "" {
		return nil, fmt.Errorf("credential helper docker-credential-%s answered for %s with something that is not the JSON of Docker's credential helpers", helper, trimServer(server))
	}
	if got.Username == "<token>" {
		return &Auth{IdentityToken: got.Secret, ServerAddress: server}, nil
	}
	return &Auth{Username: got.Username, Password: got.Secret, ServerAddress: server}, nil
}

// registryOf is the registry of an image reference: its first part when that looks like a host.
func registryOf(ref string) string {
	first, _, ok := strings.Cut(ref, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return first
	}
	return hubServer
}

func trimServer(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	host, _, _ := strings.Cut(s, "/")
	return host
}
