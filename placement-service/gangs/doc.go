// Package gangs is where the members of a gang meet before any of them runs its command: their drivers come, wait, and are
// told their ranks and the environment by which they find each other, all at once or not at all. Placing gangs and starting
// tasks do not belong here.
package gangs
