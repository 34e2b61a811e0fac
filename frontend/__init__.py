"""HTTP in, HTML out: the chat for people. Mount ``handlers``, and open with ``lifespan``."""

from litestar import Router
from litestar.exceptions import HTTPException
from litestar.types import ControllerRouterHandler

from corral.backend.errors import CorralError
from corral.frontend import (
    actions,
    branching,
    conversations,
    drafts,
    login,
    pages,
    pictures,
    probabilities,
    queue,
    static,
    tuning_pages,
    ways,
)
from corral.frontend.queue import lifespan
from corral.frontend.tools import grammar, inspect, preferences, status, template, tokens, tree
from corral.frontend.wire import failure, framework_failure, own_form, speak, unforeseen

__all__ = ["error_page", "handlers", "lifespan"]

#: The page for an error outside the UI's own routes.
error_page = failure

#: Route handlers of the web UI; they need ``app.state.service``, ``settings`` and
#: ``session_value`` (see ``login``).
handlers: list[ControllerRouterHandler] = [
    Router(
        "/",
        route_handlers=[
            pages.new_chat,
            pages.conversation,
            pages.strip_fragment,
            pages.events,
            actions.start,
            actions.send,
            actions.stop,
            conversations.rows,
            conversations.search,
            conversations.manage,
            conversations.rename,
            conversations.pin,
            conversations.delete,
            conversations.restore,
            branching.turn,
            branching.editing,
            branching.edit,
            branching.branch,
            branching.retry,
            branching.go_on,
            branching.choose,
            branching.fork,
            branching.delete,
            branching.restore,
            ways.ways,
            ways.side_by_side,
            ways.keep,
            ways.events,
            tree.tree,
            tuning_pages.settings_page,
            tuning_pages.look,
            tuning_pages.tune,
            tokens.tokens_page,
            tokens.to_tokens,
            tokens.to_text,
            template.template_page,
            template.preview,
            grammar.grammar_page,
            grammar.check,
            grammar.try_it,
            grammar.events,
            grammar.stop,
            queue.send_now,
            queue.edit,
            queue.remove,
            drafts.save,
            drafts.load,
            pictures.attach,
            pictures.picture,
            pictures.small,
            preferences.preferences_page,
            preferences.prefer,
            probabilities.probabilities,
            probabilities.alternatives,
            probabilities.alternative,
            probabilities.keep,
            inspect.inspect,
            inspect.request_json,
            inspect.prompt_text,
            status.status_page,
            status.status_now,
            login.login_page,
            login.login,
            static.asset,
        ],
        guards=[own_form],
        before_request=speak,
        exception_handlers={
            CorralError: failure,
            HTTPException: framework_failure,
            Exception: unforeseen,
        },
        include_in_schema=False,
    )
]
