package docker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// hubServer is the key under which docker login keeps the credentials of Docker Hub.
const hubServer = "https://index.docker.io/v1/"

// AuthFromFile finds the credentials for an image in a file as docker login writes it. It returns nil when the file
// has none for the image's registry. Errors never hold the file's content.
func AuthFromFile(path, ref string) (*Auth, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read registry credentials: %w", err)
	}
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(body, &file); err != nil {
		return nil, fmt.Errorf("registry credentials in %s are not the JSON that docker login writes", path)
	}
	server := registryOf(ref)
	for key, entry := range file.Auths {
		if trimServer(key) != trimServer(server) {
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(entry.Auth)
		user, password, ok := strings.Cut(string(plain), ":")
		if err != nil || !ok && entry.IdentityToken == "" {
			return nil, fmt.Errorf("registry credentials of %s in %s are not base64 of user:password", key, path)
		}
		return &Auth{Username: user, Password: password, ServerAddress: key, IdentityToken: entry.IdentityToken}, nil
	}
	return nil, nil
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
