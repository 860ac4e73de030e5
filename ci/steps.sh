# Headings with times, for the scripts of CI. Source it; then `step NAME` starts a step and ends the one before it.

step_name=
step_start=0
started=$SECONDS

step() {
    end_step
    step_name=$1
    step_start=$SECONDS
    printf '\n== %s (%ds since the start)\n' "$step_name" $((SECONDS - started))
}

end_step() {
    [ -z "$step_name" ] || printf -- '-- %s: ok, %d s\n' "$step_name" $((SECONDS - step_start))
    step_name=
}

# With `set -e` a failing command ends the script in the middle of a step: say in which.
trap 'status=$?; [ $status -eq 0 ] || printf -- "-- %s: FAILED with %d after %d s\n" "${step_name:-start}" $status $((SECONDS - step_start))' EXIT
