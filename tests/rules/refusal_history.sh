#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The lists of refusals (tests/cases/refusals) only shrink: an id that left never returns, and a new id enters only with the
# commit that adds its case (or the list itself: a new device). Reads the history of the repository; the working tree counts as the next commit.
# Usage: refusal_history.sh <root>      77: no history to read
set -eu
cd "$1"
git rev-parse --git-dir >/dev/null 2>&1 || { echo "no git history"; exit 77; }
[ "$(git rev-parse --show-prefix)" = "" ] || { echo "not the root of a repository"; exit 77; }
status=0

ids() { sed 's/#.*//' | awk 'NF { print $1 }' | sort -u; }
# Does the table of a commit ("" = the working tree) have the case?
has_case() {
  if [ -n "$2" ]; then
    git grep -q -F "\"id\":\"$1\"" "$2" -- tests/cases/table
  else
    grep -q -F "\"id\":\"$1\"" tests/cases/table/*.jsonl
  fi
}

for list in tests/cases/refusals/*.txt; do
  before='' gone='' parent='' created=yes
  for commit in $(git log --reverse --format=%H -- "$list") working-tree; do
    if [ "$commit" = working-tree ]; then
      now=$(ids <"$list")
      commit=''
      parent=$(git rev-parse -q --verify HEAD || true)
    else
      now=$(git show "$commit:$list" 2>/dev/null | ids)
      parent=$(git rev-parse -q --verify "$commit^" || true)
    fi
    for id in $now; do
      case " $before " in *" $id "*) continue ;; esac
      case " $gone " in *" $id "*)
        echo "$list: $id left the list earlier and returned in ${commit:-the working tree}"
        status=1 ;;
      esac
      if ! has_case "$id" "$commit" ||
        { [ "$created" = '' ] && [ -n "$parent" ] && has_case "$id" "$parent"; }; then
        echo "$list: $id entered in ${commit:-the working tree}, which does not add its case"
        status=1
      fi
    done
    for id in $before; do
      case " $(echo $now) " in *" $id "*) ;; *) gone="$gone $id" ;; esac
    done
    before=$(echo $now)
    created=''
  done
done
exit "$status"
